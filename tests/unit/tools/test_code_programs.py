"""What is put into a slot for its code runs on the Pythons of old images, too."""

from __future__ import annotations

import ast

import pytest

from hermes_exec.tools.catalog.schemas import schemas
from hermes_exec.tools.code import stubs


@pytest.mark.parametrize(
    "text", [stubs.module_text(schemas()), stubs.program_text("kernel.py")], ids=["hermes_tools", "kernel"]
)
def test_programs_are_python_3_6(text: str) -> None:
    ast.parse(text, feature_version=(3, 6))
