"""Uploads, the kernel's end: a page is played by the messages that one would send."""

from __future__ import annotations

import pytest

from tests.test_panel_view import Page
from workbench.panel import transfer
from workbench.panel.transfer import SLICE_BYTES, SUFFIXES, Upload, UploadError, base_name, check_file


@pytest.fixture
def upload():
    """A page on an Upload; ``files`` and ``errors`` hold what it reported."""
    files, errors = [], []
    page = Page(Upload(lambda name, data: files.append((name, data)), errors.append))
    page.files, page.errors = files, errors
    return page


def slices(upload, data, name="clip.wav", key="u1"):
    """Play a page: begin, then each slice as the kernel asks for it."""
    upload.say("begin", upload=key, name=name, size=len(data))
    while upload.got[-1]["kind"] == "next":
        at, length = upload.got[-1]["at"], upload.got[-1]["bytes"]
        upload.say("slice", [memoryview(data)[at : at + length]], upload=key, name=name, at=at)


def test_a_file_arrives_whole_slice_by_slice(upload):
    data = bytes(range(256)) * (SLICE_BYTES // 256 * 2) + b"end"
    slices(upload, data)
    assert upload.files == [("clip.wav", data)] and upload.errors == []
    assert [(m["kind"], m.get("at")) for m in upload.got] == [
        ("next", 0),
        ("next", SLICE_BYTES),
        ("next", 2 * SLICE_BYTES),
        ("done", None),
    ]


def test_a_file_of_exactly_one_slice_needs_one(upload):
    slices(upload, bytes(SLICE_BYTES))
    assert upload.kinds() == ["next", "done"]


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("notes.txt", 5, "notes.txt: not audio: choose a .wav, .flac, .ogg or .mp3 file"),
        (".wav", 5, ".wav: not audio: choose a .wav, .flac, .ogg or .mp3 file"),
        ("", 5, "a file without a name: not audio: choose a .wav, .flac, .ogg or .mp3 file"),
        ("long.wav", 80_000_000, "long.wav: 80.0 MB is more than 64 MB: cut it up"),
        ("just.wav", 64_000_001, "just.wav: 64.1 MB is more than 64 MB: cut it up"),
        ("empty.wav", 0, "empty.wav: holds no byte"),
    ],
)
def test_what_is_no_clip_is_refused_before_a_byte_is_asked_for(upload, name, size, said):
    upload.say("begin", upload="u1", name=name, size=size)
    assert upload.got == [{"kind": "refused", "upload": "u1", "text": said}]
    assert upload.errors == [said] and upload.files == []


def test_the_limit_itself_and_capitals_are_taken():
    check_file("A.WAV", transfer.LIMIT_BYTES, list(SUFFIXES), transfer.LIMIT_BYTES)


def test_one_suffix_is_listed_alone():
    with pytest.raises(UploadError, match=r"^a\.mp3: not audio: choose a \.wav file$"):
        check_file("a.mp3", 1, [".wav"], 10)


def test_suffixes_and_limit_are_the_widgets_own():
    errors = []
    page = Page(Upload(lambda *_: None, errors.append, accept=[".wav"], limit_bytes=1_500_000))
    page.say("begin", upload="u1", name="a.mp3", size=5)
    page.say("begin", upload="u1", name="a.wav", size=1_500_001)
    assert errors == [
        "a.mp3: not audio: choose a .wav file",
        "a.wav: 1.6 MB is more than 1.5 MB: cut it up",
    ]


@pytest.mark.parametrize(("at", "length"), [(1, 4), (0, 11), (0, 0)])
def test_a_slice_out_of_order_too_long_or_empty_ends_the_upload(upload, at, length):
    upload.say("begin", upload="u1", name="clip.wav", size=10)
    upload.say("slice", [bytes(length)], upload="u1", name="clip.wav", at=at)
    said = f"clip.wav: came out of order ({length} bytes at {at} where 0 of 10 were there): choose it again"
    assert upload.errors == [said] and upload.kinds() == ["next", "refused"]
    upload.say("slice", [bytes(10)], upload="u1", name="clip.wav", at=0)
    assert upload.files == [] and upload.errors[1:] == ["clip.wav: another upload took its place: choose it again"]


def test_a_slice_longer_than_asked_for_ends_the_upload(upload):
    upload.say("begin", upload="u1", name="clip.wav", size=2 * SLICE_BYTES)
    upload.say("slice", [bytes(SLICE_BYTES + 1)], upload="u1", name="clip.wav", at=0)
    assert upload.kinds() == ["next", "refused"] and len(upload.errors) == 1


def test_a_second_upload_takes_the_place_of_a_half_sent_first(upload):
    upload.say("begin", upload="u1", name="first.wav", size=10)
    slices(upload, b"second", name="second.wav", key="u2")
    assert upload.files == [("second.wav", b"second")]
    upload.say("slice", [bytes(10)], upload="u1", name="first.wav", at=0)
    assert upload.errors == ["first.wav: another upload took its place: choose it again"]


def test_what_the_page_refused_is_passed_on_in_one_line(upload):
    upload.say("refused", text="notes.txt: not audio:\n choose another" + "!" * 1000)
    (said,) = upload.errors
    assert said.startswith("notes.txt: not audio: choose another!") and len(said) < 500


def test_a_message_that_no_upload_understands_is_reported(upload):
    upload.say("slice", upload="u1", name="clip.wav", at=0)
    assert upload.errors == ["the page sent what no upload understands: reload the page, then choose again"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("clip.wav", "clip.wav"),
        ("../../etc/clip.wav", "clip.wav"),
        ("C:\\fake\\clip.wav", "clip.wav"),
        ("a\x00b\n.wav", "ab.wav"),
        ("x" * 500 + ".wav", "x" * 116 + ".wav"),
        ("folder/", ""),
    ],
)
def test_of_a_name_only_the_last_part_is_kept(given, kept):
    assert base_name(given) == kept
