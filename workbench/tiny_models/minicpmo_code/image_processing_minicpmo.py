"""A stand-in for MiniCPM-o's image processor: vLLM asks it how many tokens an image takes, also where none may come."""

from typing import ClassVar

from transformers.image_processing_utils import BaseImageProcessor


class MiniCPMOImageProcessor(BaseImageProcessor):
    """Says what an unsliced image takes, and turns no image into pixels."""

    model_input_names: ClassVar[list] = ["pixel_values"]

    def __init__(self, max_slice_nums=9, image_feature_size=64, **kwargs):
        super().__init__(**kwargs)
        self.max_slice_nums = max_slice_nums
        self.image_feature_size = image_feature_size

    def get_sliced_grid(self, image_size, max_slice_nums=None):
        """None: no image is sliced."""

    def get_slice_image_placeholder(self, image_size, image_idx=0, max_slice_nums=None, use_image_id=True):
        """The prompt's text for one image."""
        return "<image>" + "<unk>" * self.image_feature_size + "</image>"

    def preprocess(self, images, **kwargs):
        """Raises NotImplementedError: the folder holds no weights for images."""
        raise NotImplementedError("this model folder takes audio only")
