"""What libraries remark while an engine starts goes into its log, and to the user again afterwards."""

from __future__ import annotations

import logging

import pytest

from workbench.engine.host import LOG, libraries_logged


@pytest.mark.parametrize("name", ["transformers.processing_utils", "torch._library.triton"])
def test_a_library_s_remark_goes_into_the_engine_s_log_alone(tmp_path, capfd, name):
    logger, library = logging.getLogger(name), logging.getLogger(name.partition(".")[0])
    with libraries_logged(tmp_path):
        heard_before = library.handlers
        logger.warning("an option is not valid")
    assert capfd.readouterr().err == ""
    assert (tmp_path / LOG).read_text().rstrip().endswith("WARNING MainProcess an option is not valid")
    assert library.handlers != heard_before and not logger.disabled


def test_of_two_engines_that_start_at_once_neither_leaves_its_log_behind(tmp_path, capfd):
    logger = logging.getLogger("transformers")
    with libraries_logged(tmp_path):
        pass
    before, folders, starts = logger.handlers, [tmp_path / "a", tmp_path / "b"], []
    for folder in folders:
        folder.mkdir()
        starts.append(libraries_logged(folder))
        starts[-1].__enter__()
    logger.warning("both start")
    starts[0].__exit__(None, None, None)
    logger.warning("b still does")
    starts[1].__exit__(None, None, None)
    assert capfd.readouterr().err == "" and logger.handlers == before
    said = [[line.rpartition("MainProcess ")[2] for line in (f / LOG).read_text().splitlines()] for f in folders]
    assert said == [["both start"], ["both start", "b still does"]]


def test_afterwards_libraries_speak_as_before_also_when_the_engine_did_not_start(tmp_path):
    loggers = [logging.getLogger(name) for name in ("transformers", "torch")]
    with libraries_logged(tmp_path):
        pass
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    assert all(handlers for handlers, _ in before)
    with pytest.raises(OSError), libraries_logged(tmp_path):
        raise OSError
    assert [(logger.handlers, logger.propagate) for logger in loggers] == before
