"""What wandb is told, read from the files of an offline run."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.atropos.inference_server import PolicyServer, call, load, serving, solve
from tests.e2e.atropos.trainer import flags, run

SECRET = "hunter2-of-the-pool"
METRICS = (
    "train/finish_answered", "train/cause_policy", "train/infra_rate", "train/reward_mean", "train/pass_rate",
    "train/turns_mean", "train/tool_calls", "train/tool_errors_count", "train/tool_error_details",
    "train/tool_call_s_p95",
    "pool/slots_in_use", "pool/acquired", "pool/released", "pool/acquire_p95_s",
)  # fmt: skip


def policy(prompt: str) -> str:
    """Says a secret of the slot and fails once, before it solves the task."""
    if "<tool_response>" not in prompt:
        return call("terminal", command="echo the word is $WORD") + call("read_file", path="nothing-here")
    return solve(prompt.replace("<tool_response>", "", 2).replace("<|im_start|>tool", "", 2))


def test_an_offline_run_has_metrics_and_conversations_without_secrets(tokenizer: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"  # wandb keeps the command line
    settings.write_text(json.dumps({"env": {"backend_options": {"secrets": {"WORD": SECRET}}}}))
    groups = tmp_path / "groups.jsonl"
    with serving(PolicyServer(load(tokenizer), policy)) as server:
        more = ("--env.use_wandb", "true", "--env.total_steps", "2", "--env.data_path_to_save_groups", str(groups))
        code, said = run(
            "process", *flags(tokenizer, server.url, *more, "--config", str(settings)),
            WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true",
        )  # fmt: skip
    assert code == 0, said
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    told = log.read_bytes()
    assert not [name for name in METRICS if name.encode() not in told]
    tables = [json.loads(path.read_text()) for path in tmp_path.glob("wandb/offline-run-*/files/media/table/train/*")]
    shown = [text for table in tables for text, score in table["data"] if score == 1.0]
    assert any("[user]" in text and "→ terminal(" in text and "the word is ***" in text for text in shown)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != settings]
    assert groups in written
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert SECRET not in said
