"""Batch runs: a file of prompts, a slot for each prompt, and a file of trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_batch.columns import JSON_COLUMNS
    from hermes_batch.compare import ComparedPrompt, Comparison, compare_runs
    from hermes_batch.config import BatchConfig
    from hermes_batch.dataset import read_dataset
    from hermes_batch.dataset_check import CheckConfig, CheckReport, Fault, check_dataset
    from hermes_batch.dataset_config import DatasetConfig
    from hermes_batch.export.export import ExportResult, export_records
    from hermes_batch.fixed_messages import to_openai_messages
    from hermes_batch.merge import MergeResult, merge_runs
    from hermes_batch.parquet import load
    from hermes_batch.record import Record
    from hermes_batch.report.report import write_report
    from hermes_batch.result import BatchResult
    from hermes_batch.rollouts import run_rollouts
    from hermes_batch.run import resume_batch, run_batch
    from hermes_batch.status import RunStatus, read_status
    from hermes_batch.task import Task
    from hermes_batch.trajectories import read_records

__all__ = [
    "JSON_COLUMNS",
    "BatchConfig",
    "BatchResult",
    "CheckConfig",
    "CheckReport",
    "ComparedPrompt",
    "Comparison",
    "DatasetConfig",
    "ExportResult",
    "Fault",
    "MergeResult",
    "Record",
    "RunStatus",
    "Task",
    "check_dataset",
    "compare_runs",
    "export_records",
    "load",
    "merge_runs",
    "read_dataset",
    "read_records",
    "read_status",
    "resume_batch",
    "run_batch",
    "run_rollouts",
    "to_openai_messages",
    "write_report",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        __all__,
        where=(
            *("columns", "fixed_messages", "record", "task", "dataset", "trajectories", "parquet", "report.report"),
            *("compare", "export.export", "config", "dataset_check", "dataset_config", "result"),
            *("run", "rollouts", "merge", "status"),
        ),
    )
