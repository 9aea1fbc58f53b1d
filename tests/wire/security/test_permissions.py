"""The table of messages and roles as people read it."""

from talka.wire.security.permissions import COLUMNS, markdown, rows


def test_page_shows_a_line_for_each_row_and_marks_what_is_for_ones_own_alone() -> None:
    head, _, *lines, _, note = markdown().splitlines()
    assert head == "| conversation | message | manager | worker | outside-worker | client | gate | unproven |"
    assert len(lines) == len(rows())
    assert "| jobs | `WantBlob` | yes | own | own |  |  |  |" in lines
    assert "| asking | `AskLeader` | yes |  |  | yes | yes |  |" in lines
    assert "| jobs | `CancelJob` | yes |  |  |  |  |  |" in lines
    assert note == "own: bundles of jobs of which it was granted cores (`WantBlob`)."
    assert all(line.count("|") == len(COLUMNS) + 3 for line in lines)
