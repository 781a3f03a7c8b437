"""The state of the machine."""

import grp
import os
import pwd
import stat
from pathlib import Path


def test_account():
    assert grp.getgrnam("deploy").gr_gid == 4200
    user = pwd.getpwnam("svc")
    assert (user.pw_uid, user.pw_gid, user.pw_dir, user.pw_shell) == (4201, 4200, "/opt/svc", "/usr/sbin/nologin")


def test_home():
    found = os.stat("/opt/svc")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4201, 4200, 0o770)


def test_configuration():
    assert Path("/etc/svc.conf").read_text() == "port=9000\nworkers=4\nlog=/var/log/svc.log\n"
    found = os.stat("/etc/svc.conf")
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o644)


def test_hosts():
    lines = [line.split("#")[0].split() for line in Path("/etc/hosts").read_text().splitlines()]
    assert any(line[:1] == ["127.0.0.1"] and "svc.internal" in line[1:] for line in lines)
    assert any(line[:1] == ["127.0.0.1"] and "localhost" in line[1:] for line in lines)
