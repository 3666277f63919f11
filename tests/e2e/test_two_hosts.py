"""Two pods, two JAX processes, one mesh."""

import pytest

from finetune_contract import Stage
from tests.e2e.workbench import Workbench, finetune_job

FULL = {"method": {"type": "SFT"}}


def test_two_hosts_train_to_the_loss_of_one_process_on_the_same_global_batch(bench: Workbench) -> None:
    bench.apply(
        finetune_job(
            "two", resources={"accelerator": "tpu-v6e-slice", "topology": "2x4", "chipsPerHost": 4}, **FULL
        )
    )
    train = bench.wait("two", lambda job: job.get("status", {}).get("stage") == "Train")
    pods = bench.list("pods", job="two", stage="Train")
    two = bench.succeed("two")
    bench.apply(finetune_job("one", resources={"accelerator": "tpu-v6e-slice", "topology": "2x2"}, **FULL))
    one = bench.succeed("one")

    assert train["status"]["resolved"]["resources"]["hosts"] == 2
    assert len(pods) <= 2
    of_two, of_one = bench.losses(two), bench.losses(one)
    assert of_two.keys() == of_one.keys()
    assert len(of_one) == 20
    for step, loss in of_one.items():
        assert float(of_two[step]) == pytest.approx(float(loss), rel=1e-3), step
    last = bench.result(two, Stage.TRAIN).details
    assert last is not None
    assert last.kind == "Train"
    assert last.step == 20
