"""Small questions that the tests of the page ask."""

from __future__ import annotations

from shardwise.ui.question import Question

TRAINING = Question(model="llama3.2-1b", hardware="v5e:2x4", batch=16, seq=2048, tokens=1e9)
SERVING = Question(model="llama3.2-1b", hardware="v5e:2x2", kind="serve", prompt=512, output=128)
EXPERTS = Question(model="mixtral-8x7b", hardware="h100:16", batch=32, seq=4096)
QUESTIONS = (TRAINING, SERVING, EXPERTS)
