"""MiniCPM-o's configuration: a Qwen3 decoder's, with a vision and an audio encoder's in it."""

from typing import ClassVar

from transformers import Qwen3Config, SiglipVisionConfig, WhisperConfig


class MiniCPMOConfig(Qwen3Config):
    """What vLLM's MiniCPMO reads; the defaults are those of MiniCPM-o 4.5. The sub-configurations are dicts."""

    model_type = "minicpmo"
    sub_configs: ClassVar[dict] = {"vision_config": SiglipVisionConfig, "audio_config": WhisperConfig}

    def __init__(
        self,
        version="4.5",
        vision_config=None,
        audio_config=None,
        query_num=64,
        image_size=448,
        drop_vision_last_layer=False,
        audio_pool_step=5,
        audio_chunk_length=1.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.version = version
        self.vision_config = SiglipVisionConfig(**_plain(vision_config))
        self.audio_config = WhisperConfig(**_plain(audio_config))
        self.query_num = query_num
        self.image_size = image_size
        self.drop_vision_last_layer = drop_vision_last_layer
        self.audio_pool_step = audio_pool_step
        self.audio_chunk_length = audio_chunk_length


def _plain(config):
    return config if isinstance(config, dict) else config.to_dict() if config is not None else {}
