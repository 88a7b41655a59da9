"""Addresses of servers: from the command line, or from the file that --serve-only writes."""

import threading

import pytest

from command.main import main
from conftest import arguments
from servers.pool import read_addresses

URLS = ["https://10.0.0.2:8100", "https://node3:8101"]


def test_addresses_come_from_the_words_and_from_files_by_commas(tmp_path):
    (tmp_path / "a").write_text("\n".join(URLS))
    assert read_addresses(f"http://b:1, @{tmp_path}/a,http://c:2", 0) == [
        "http://b:1", *URLS, "http://c:2"]


def test_an_address_that_is_given_twice_is_one_server(tmp_path):
    """Or it would be paused, and given weights, by two who do not know of each other."""
    (tmp_path / "a").write_text("\n".join(URLS))
    assert read_addresses(f"{URLS[1]}/,@{tmp_path}/a,@{tmp_path}/a", 0) == URLS[::-1]


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path, capsys):
    """The two machines are started by two people, or by a scheduler in any order."""
    (tmp_path / "aside").write_text("\n".join(URLS))
    timer = threading.Timer(0.5, (tmp_path / "aside").replace, [tmp_path / "later"])
    timer.start()
    assert read_addresses(f"@{tmp_path}/later", 60) == URLS
    assert "waiting for" in capsys.readouterr().err
    timer.join()


@pytest.mark.parametrize("text", [b"", b"10.0.0.2:8100", b"http://a:8000 and more", b"\xff\xfe\x00",
                                  b"http://a:port", b"http://a:0", b"http://a",
                                  b"ftp://a:21"])
def test_a_file_of_something_else_is_refused_in_a_sentence(text, tmp_path):
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ValueError, match="^vllm_url = '@.*/file': should give addresses like .*"):
        read_addresses(f"@{tmp_path}/file", 0)
    with pytest.raises(ValueError, match="not '10.0.0.7:8000'"):
        read_addresses("http://a:1,10.0.0.7:8000", 0)
    for place in (f"@{tmp_path}", "@"):                 # no file ever appears there
        with pytest.raises(ValueError, match="^vllm_url = '@.*': .* is a folder, not a file$"):
            read_addresses(place, 600)


@pytest.mark.parametrize("text, code, sentence", [
    (None, 1, "start: servers.txt has not appeared for 0.3 s: does --serve-only run"),
    ("gibberish", 2, "vllm_url = '@servers.txt': should give addresses like")])
def test_a_run_ends_in_a_sentence_where_no_addresses_are(text, code, sentence, micro, tmp_path,
                                                         monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / "servers.txt").write_text(text)
    words = arguments(micro, name="r", engine="vllm", vllm_url="@servers.txt", gpus=0,
                      deadline_s=0.1)
    assert main(words) == code
    assert f"scalerl.py: {sentence}" in capsys.readouterr().err
