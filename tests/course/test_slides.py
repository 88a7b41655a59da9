"""`make slides`: one page with all of the lecture in it."""
import re

import pytest

from course import slides


def test_the_lecture_is_one_page_that_needs_no_network(tmp_path):
    assert not slides.main(["--out", str(tmp_path / "a" / "slides.html")])
    page, source = (tmp_path / "a" / "slides.html").read_text(), slides.SOURCE.read_text()
    assert page.count("<section>") == len(re.findall("^---$", source, re.M)) + 1 >= 12
    assert page.count("<aside>") == source.count("\n???\n") > 3
    assert "data:image/png;base64," in page and "<table>" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_a_picture_that_is_missing_is_said(tmp_path):
    with pytest.raises(ValueError, match="no.png is missing"):
        slides.made("# a\n\n![x](no.png)\n", tmp_path)
