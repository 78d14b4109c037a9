"""Errors a user can cause: one line each, saying what is wrong, where, and how to mend it.

``cli.main`` is the only place that catches them: it prints the line on stderr and exits with code 2.
Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class TfanalyzeError(Exception):
    """What is wrong, where it is, how to mend it."""

    def __init__(self, what: str, where: str = "", mend: str = "") -> None:
        # a name from a file may hold a line break; the message stays one line
        self.what, self.where, self.mend = (" ".join(text.split()) if "\n" in text or "\r" in text else text for text in (what, where, mend))
        super().__init__(str(self))

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.mend}" if self.mend else line


class InputError(TfanalyzeError):
    """A file that is missing, empty or unreadable."""


class FormatError(TfanalyzeError):
    """A file whose format is unknown, or lacks what its format must have."""


class ConfigError(TfanalyzeError):
    """A field of tfanalyze.toml or a command-line setting: what was found, what is allowed."""


class WorkspaceError(TfanalyzeError):
    """The DuckDB workspace: locked, of a newer version, empty."""


class ProfileError(TfanalyzeError):
    """A profile that is missing, malformed, or used outside its calibrated range."""


class PolicyError(TfanalyzeError):
    """An unknown policy or parameter, or a policy file that does not keep the contract."""


class ExportError(TfanalyzeError):
    """Something that the target gateway cannot express."""


class ReplayError(TfanalyzeError):
    """A fleet and trace that cannot be replayed together."""
