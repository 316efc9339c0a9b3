"""The page of results says what the recorded files say, and nothing else."""

from gpzoo.reproductions.experiment import all_experiments
from gpzoo.reproductions.page import results_page
from tests.conftest import ROOT


def test_results_page_is_that_of_the_files():
    page = results_page(ROOT / "reproductions" / "results", all_experiments())
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == page
