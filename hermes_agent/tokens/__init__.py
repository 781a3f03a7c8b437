"""Models on token ids: prompts and samples are kept as ids, so that training uses exactly the sampled tokens."""

from __future__ import annotations

from hermes_agent.tokens.answers import Sample
from hermes_agent.tokens.control import Tokenizer
from hermes_agent.tokens.samplers import (
    CompletionsSampler,
    Sampler,
    SGLangSampler,
    TinkerSampler,
    VLLMSampler,
    VLLMTokensSampler,
)
from hermes_agent.tokens.sequence import TokenSequence, sequence, sequences
from hermes_agent.tokens.session import TokenModel, TokenSession
from hermes_agent.tokens.template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "CompletionsSampler",
    "SGLangSampler",
    "Sample",
    "Sampler",
    "TinkerSampler",
    "TokenModel",
    "TokenSequence",
    "TokenSession",
    "Tokenizer",
    "VLLMSampler",
    "VLLMTokensSampler",
    "sequence",
    "sequences",
]
