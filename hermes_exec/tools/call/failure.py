"""The exception that a tool raises to return an error result to the model."""

from __future__ import annotations


class ToolFailure(Exception):
    """An error inside a tool that the model can act on. A `Toolbox` turns it into an error result.

    `kind` is stable and meant for programs (`not_found`, `wrong_type`, …). `message` is written for the model and
    includes the next step. `fields` are further entries of the result.
    """

    def __init__(self, kind: str, message: str, **fields: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fields = fields

    def data(self) -> dict[str, object]:
        """Return the result for the model: `error`, `error_kind`, then the further fields."""
        return {"error": self.message, "error_kind": self.kind, **self.fields}
