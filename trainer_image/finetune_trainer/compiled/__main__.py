"""The compiler's process. Standard input: a request, the folder of its model, then a candidate a line. Standard output:
an answer a line, and nothing else; MaxText's and libtpu's own output goes to standard error."""

import os
import sys
from pathlib import Path

from finetune_contract import StageRequest
from finetune_trainer import families
from finetune_trainer.compiled.question import Answered, Candidate


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = StageRequest.model_validate_json(sys.stdin.readline())
    plan = families.read(Path(sys.stdin.readline().rstrip("\n")))
    from finetune_trainer import engine
    from finetune_trainer.compiled.compiler import Compiler

    engine.prepare(plan)
    compiler = Compiler(plan, request)
    for line in sys.stdin:
        answer = compiler.answer(Candidate.model_validate_json(line))
        answers.write(Answered(answer=answer).to_json() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
