"""The layout of the configuration."""

import configparser
from pathlib import Path


def test_main_ini():
    parser = configparser.ConfigParser()
    assert parser.read("etc/service/main.ini") == ["etc/service/main.ini"]
    assert dict(parser["server"]) == {"host": "127.0.0.1", "port": "8080"}
    assert dict(parser["limits"]) == {"connections": "64"}


def test_link():
    link = Path("etc/service/enabled/main.ini")
    assert link.is_symlink()
    assert str(link.readlink()) == "../main.ini"
    assert link.read_bytes() == Path("etc/service/main.ini").read_bytes()


def test_empty_folder():
    folder = Path("var/log/service")
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_version():
    assert Path("VERSION").read_bytes() == b"1.4.0\n"
