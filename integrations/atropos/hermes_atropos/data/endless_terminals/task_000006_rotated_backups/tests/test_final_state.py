"""What was restored, and where the archives are."""

from pathlib import Path


def test_restored():
    assert Path("/home/user/restored.txt").read_text() == "site-2024-03-02.tar.gz\n"
    site = Path("/home/user/site")
    found = {str(p.relative_to(site)): p.read_text() for p in site.rglob("*") if p.is_file()}
    assert found == {"index.html": "version 2\n", "css/main.css": "body {}\n"}


def test_archives():
    names = sorted(p.name for p in Path("/var/backups").iterdir() if p.name.startswith("site-"))
    assert names == ["site-2024-03-01.tar.gz", "site-2024-03-02.tar.gz"]
    damaged = sorted(p.name for p in Path("/var/backups/damaged").iterdir())
    assert damaged == ["site-2024-03-03.tar.gz", "site-2024-03-04.tar.gz"]
