"""The chain as MaxText's own users run it by hand: one stage per call, without any of our code.

The baseline of the quickstart benchmark; run it with the trainer environment's Python:

    python bare_chain.py {convert|train|export|export-converted} SETTINGS.json

SETTINGS.json contains: model (folder), work (folder), train, validation (JSONL files of ``messages``), steps, batch,
sequence, learning_rate, chips; optionally metrics (a file). The dimensions come from the model's config.json,
since MaxText's catalog has no model of that size.
"""

import json
import sys
from pathlib import Path
from typing import Any


def overrides(config: dict[str, Any]) -> list[str]:
    """Returns MaxText's flags for a Qwen3 of any size."""
    return [
        "model_name=qwen3-0.6b",
        "override_model_config=True",
        f"base_emb_dim={config['hidden_size']}",
        f"base_num_query_heads={config['num_attention_heads']}",
        f"base_num_kv_heads={config['num_key_value_heads']}",
        f"head_dim={config['head_dim']}",
        f"base_mlp_dim={config['intermediate_size']}",
        f"base_num_decoder_layers={config['num_hidden_layers']}",
        f"vocab_size={config['vocab_size']}",
        "hardware=cpu",
        "skip_jax_distributed_system=True",
        "scan_layers=True",
        "use_multimodal=false",
    ]


def main() -> None:
    stage, settings_file = sys.argv[1:]
    settings = json.loads(Path(settings_file).read_text())
    model, work = settings["model"], settings["work"]
    flags = overrides(json.loads((Path(model) / "config.json").read_text()))

    import maxtext
    from maxtext.checkpoint_conversion.utils import hf_model_configs
    from transformers import AutoConfig

    configs = Path(maxtext.__file__).parent / "configs"
    hf_model_configs.HF_MODEL_CONFIGS["qwen3-0.6b"] = AutoConfig.from_pretrained(model)
    base = ["bare_chain", str(configs / "base.yml"), *flags]
    if stage == "convert":
        from maxtext.checkpoint_conversion import to_maxtext

        to_maxtext.main(
            [*base, f"base_output_directory={work}/converted"],
            hf_model_path=model,
            simulated_cpu_devices_count=2,
        )
    elif stage == "train":
        from maxtext.trainers.post_train.sft import train_sft

        train_sft.main(
            [
                "bare_chain",
                str(configs / "post_train" / "sft.yml"),
                *flags,
                "run_name=bare",
                f"base_output_directory={work}/trained",
                f"load_parameters_path={work}/converted/0/items",
                f"tokenizer_path={model}",
                "tokenizer_type=huggingface",
                "hf_path=json",
                f"hf_train_files={settings['train']}",
                f"hf_eval_files={settings['validation']}",
                "train_split=train",
                "hf_eval_split=train",
                "train_data_columns=['messages']",
                "eval_data_columns=['messages']",
                f"per_device_batch_size={settings['batch'] / settings['chips']}",
                f"max_target_length={settings['sequence']}",
                f"steps={settings['steps']}",
                "num_epoch=100",
                f"eval_interval={settings['steps']}",
                "eval_steps=-1",
                f"learning_rate={settings['learning_rate']}",
                "packing=False",
                "attention=dot_product",
                "dtype=float32",
                "weight_dtype=float32",
                f"checkpoint_period={settings['steps']}",
                "grain_worker_count=0",
                *([f"metrics_file={settings['metrics']}"] if "metrics" in settings else []),
            ]
        )
    else:
        from absl import flags as absl_flags
        from maxtext.checkpoint_conversion import to_huggingface

        absl_flags.FLAGS(["bare_chain", f"--hf_model_path={model}"])
        trained = f"{work}/trained/bare/checkpoints/{settings['steps']}/model_params"
        to_huggingface.main(
            [
                *base,
                f"load_parameters_path={trained if stage == 'export' else f'{work}/converted/0/items'}",
                f"base_output_directory={work}/exported",
                "weight_dtype=bfloat16",
            ]
        )


if __name__ == "__main__":
    main()
