"""The compiler's process.

Standard input: a ``CompilerConfig``, then one candidate per line. Standard output: one answer per line, and nothing
else; MaxText's and libtpu's own output goes to standard error.
"""

import os
import sys
from pathlib import Path

from finetune_trainer import families
from finetune_trainer.compiled.compile_protocol import Candidate, CompilerConfig, CompileResponse


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = CompilerConfig.model_validate_json(sys.stdin.readline())
    plan = families.read(Path(job.model))
    from finetune_trainer.compiled.collecting_cache import CollectingCache
    from finetune_trainer.compiled.compiler import Compiler
    from finetune_trainer.engine import maxtext

    maxtext.prepare(plan)
    collected = CollectingCache.begin(Path(job.programs))
    compiler = Compiler(plan, job.request, end_ids=frozenset(job.end_ids))
    for line in sys.stdin:
        answer = compiler.answer(Candidate.model_validate_json(line))
        answers.write(CompileResponse(answer=answer, programs=collected.take()).to_json() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
