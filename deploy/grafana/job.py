"""The dashboard of one job, from the series that kube-state-metrics makes of its status."""

from grafana_foundation_sdk.builders import dashboard

from deploy.grafana.panels import THIRD, choice, curves, frame, number, states

_JOB = '{namespace="$namespace", name="$job"}'
_GOODPUT = ("queued", "provisioning", "startup", "productive", "evaluation", "recomputed")


def job() -> dashboard.Dashboard:
    made = (
        frame("Fine-tuning: one job", "finetune-job", "One job of finetune-tpu, as its status reports it.")
        .with_variable(
            choice("namespace", "Namespace", "label_values(finetune_job_phase, namespace)", several=False)
        )
        .with_variable(
            choice(
                "job", "Job", 'label_values(finetune_job_phase{namespace="$namespace"}, name)', several=False
            )
        )
    )
    for part in (_state, _training, _time):
        made = part(made)
    return made


def _of(name: str) -> str:
    return f"finetune_job_{name}{_JOB}"


def _state(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("State"))
        .with_panel(
            number(
                "Progress",
                "percentunit",
                f"{_of('steps')} / {_of('steps_planned')}",
                "Share of the planned steps",
            )
        )
        .with_panel(number("Attempts", "short", _of("attempts")))
        .with_panel(number("Goodput", "percent", _of("goodput_percent")))
        .with_panel(number("Chip hours", "h", _of("chip_hours")))
        .with_panel(number("Cost", "short", _of("cost")))
        .with_panel(
            number(
                "Age of the progress",
                "s",
                f"time() - {_of('progress_time_seconds')}",
                "Since the trainer's report",
            )
        )
        .with_panel(states("Phase", f"{_of('phase')} == 1", "{{phase}}", width=THIRD))
        .with_panel(states("Stage", f"{_of('stage')} == 1", "{{stage}}", width=THIRD))
        .with_panel(states("Conditions", _of("condition"), "{{condition}}", width=THIRD))
    )


def _training(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Training"))
        .with_panel(curves("Loss", "short", {"loss": _of("loss")}))
        .with_panel(curves("Steps", "short", {"finished": _of("steps"), "planned": _of("steps_planned")}))
        .with_panel(
            curves("Throughput, tokens per second", "short", {"all devices": _of("tokens_per_second")})
        )
        .with_panel(curves("Model FLOPs utilization", "percent", {"MFU": _of("mfu_percent")}))
        .with_panel(
            curves(
                "Time per step",
                "ms",
                {
                    "median": _of("step_time_p50_milliseconds"),
                    "95th percentile": _of("step_time_p95_milliseconds"),
                },
            )
        )
        .with_panel(
            curves(
                "Attempts that failed",
                "short",
                {
                    "preemption": _of("attempts_preempted"),
                    "infrastructure": _of("attempts_failed_infrastructure"),
                    "user": _of("attempts_failed_user"),
                },
            )
        )
    )


def _time(made: dashboard.Dashboard) -> dashboard.Dashboard:
    uses = {use: _of(f"goodput_{use}_seconds") for use in _GOODPUT}
    taken = f"{_of('stage_completion_time_seconds')} - {_of('stage_start_time_seconds')}"
    return (
        made.with_row(dashboard.Row("Time and money"))
        .with_panel(curves("Time of the training by use", "s", uses, stacked=True))
        .with_panel(
            curves(
                "Compilation",
                "s",
                {"seconds, over all attempts": _of("compilation_seconds"), "programs": _of("compilations")},
            )
        )
        .with_panel(curves("Duration of finished stages", "s", {"{{stage}}": taken}))
        .with_panel(curves("Running time", "s", {"processes of any stage": _of("active_seconds")}))
        .with_panel(curves("Chip hours", "h", {"used": _of("chip_hours")}))
        .with_panel(
            curves(
                "Money or chip hours",
                "short",
                {"cost, {{currency}}": _of("cost"), "left in the budget": _of("budget_remaining")},
            )
        )
    )
