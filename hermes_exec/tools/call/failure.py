"""The exception a tool raises to answer the model with an error result."""

from __future__ import annotations


class ToolFailure(Exception):
    """Raised inside a tool for trouble that the model can act on; a `Toolbox` turns it into an error result.

    `kind` is stable and meant for programs (`not_found`, `wrong_type`, …), `message` is written for the model and says
    what to do next, `fields` are further entries of the result.
    """

    def __init__(self, kind: str, message: str, **fields: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fields = fields

    def data(self) -> dict[str, object]:
        """The result as the model sees it: `error`, `error_kind`, then the further fields."""
        return {"error": self.message, "error_kind": self.kind, **self.fields}
