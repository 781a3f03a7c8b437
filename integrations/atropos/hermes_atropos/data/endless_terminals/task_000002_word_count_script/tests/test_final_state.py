"""The script, on files that it has not seen."""

import subprocess


def run(*arguments):
    return subprocess.run(["sh", "wordfreq.sh", *arguments], capture_output=True, text=True, timeout=20)


def test_counts(tmp_path):
    text = tmp_path / "text"
    text.write_text("The cat, the dog; THE end.\nA dog's cat-flap\n")
    done = run(str(text))
    assert done.returncode == 0
    assert done.stdout == "3 the\n2 cat\n2 dog\n"


def test_equal_counts_are_in_alphabetical_order(tmp_path):
    text = tmp_path / "a file with spaces"
    text.write_text("pear fig apple pear2fig_apple kiwi")
    assert run(str(text)).stdout == "2 apple\n2 fig\n2 pear\n"


def test_fewer_than_three_words(tmp_path):
    text = tmp_path / "short"
    text.write_text("one\n")
    assert run(str(text)).stdout == "1 one\n"


def test_missing_file(tmp_path):
    done = run(str(tmp_path / "missing"))
    assert (done.returncode, done.stdout) == (2, "")
