"""A run directory made up for the tests of the report, and its page as a browser sees it."""

import json
import math
from html.parser import HTMLParser

import numpy as np

TAG = "CoordFrozenLake"
HOSTILE = '</script><script>alert("x")</script><!-- <b>&amp; \u2028 \U0001f600 {{title}}'


def metrics(steps=60, collapse=True):
    """A run that learns while its reasoning loses its input (`collapse`) or keeps it."""
    rng = np.random.default_rng(0)
    for step in range(steps + 1):
        t = step / steps
        line = {"step": step, "time": 4.0 * step + 9}
        if step % 10 == 0:
            p = 0.12 + 0.62 / (1 + math.exp(-9 * (t - 0.45)))
            half = 1.96 * math.sqrt(p * (1 - p) / 512)
            name = f"val-env/{TAG}/success"
            line |= {name: p, f"{name}_low": p - half, f"{name}_high": p + half}
        if step % 5 == 0:
            for family, columns in (("collapse_first_turn_sample", 8), ("collapse_trajectory_sample", 60)):
                ceiling = math.log(columns)
                keep = (1 - 0.95 * t) if collapse else (1 - 0.2 * t)
                mi = ceiling * 0.9 * keep + 0.03 * rng.normal()
                h = 1.4 - 0.3 * t
                line |= {
                    f"{family}/mi_seq_estimate": mi,
                    f"{family}/mi_seq_estimate_low": mi - 0.15,
                    f"{family}/mi_seq_estimate_high": mi + 0.12,
                    f"{family}/mi_estimate": mi / 20,
                    f"{family}/mi_upper_bound": ceiling,
                    f"{family}/mi_upper_bound_per_token": ceiling / 20,
                    f"{family}/mi_zscore_ema": mi / 0.8,
                    f"{family}/retrieval_accuracy": max(1 / columns, keep * 0.9),
                    f"{family}/retrieval_chance_level": 1 / columns,
                    f"{family}/conditional_entropy_est": h,
                    f"{family}/reasoning_entropy_est": h + mi / 20,
                }
            line["collapse/regime"] = 0
        if step:
            spread_of = 2.4 * (1 - 0.5 * t) + 0.2 * rng.normal()
            line |= {
                "actor/entropy": 1.1 * (1 - 0.6 * t) + 0.03 * rng.normal(),
                "actor/grad_norm": 1 + abs(rng.normal()),
                "actor/ppo_kl": abs(0.001 * rng.normal()),
                "actor/pg_clipfrac": 0.02 * rng.random(),
                "reward_variance/mean": spread_of,
                "reward_variance/std": 0.9,
                "reward_variance/min": 0.0,
                "reward_variance/max": spread_of + 2,
                "rollout/in_group_reward_std": spread_of,
                "rollout/in_group_reward_mean": -1 + 6 * t,
                "rollout/in_group_reward_max": 3 + 6 * t,
                "rollout/filter_kept_ratio": 1 - rng.integers(0, 5) / 8,
                "rollout/filter_kept_count": 6.0,
                "rollout/filter_zero_count": float(rng.integers(0, 3)),
                "collapse/reasoning_length": 24 - 8 * t + rng.normal(),
                "collapse/valid_thinking_rate": min(1.0, 0.9 + 0.1 * t),
                "timing_s/rollout": 2 + 0.1 * rng.random() + (8 if step == 1 else 0),
                "timing_s/diagnosis": 0.8 if step % 5 == 0 else 0.0,
                "timing_s/update": 1.1,
                "timing_s/eval": 3.0 if step % 10 == 0 else 0.0,
            }
            line["rollout/filter_kept_count"] = 8 * line["rollout/filter_kept_ratio"]
            line["rollout/effective_kept_ratio"] = line["rollout/filter_kept_ratio"] / 2
        if step and step % 10 == 0:
            line |= gradients(t)
        yield line


def gradients(t):
    """A gradient analysis whose signal grows with reward variance and fades with time."""
    out = {}
    ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
    for rank, bucket in enumerate(("bucket_1", "bucket_2", "bucket_3", "all"), 1):
        signal, noise = rank * (1 - 0.9 * t), 4.0 * rank
        out |= {f"grad_norm/{bucket}/{part}": x for part, x in (("task", signal**0.5), ("reg", 0.2))}
        out[f"grad_norm/{bucket}/reward_std_mean"] = rank / 2
        for name, x in (
            ("signal_sq", signal),
            ("noise_trace", noise),
            ("reg_sq", 0.04),
            ("snr", signal / noise),
        ):
            out |= {f"grad_snr/{bucket}/{name}{end}": x + shift for end, shift in ends.items()}
    return out


def episode(step, split, group, member):
    won = (group + member + step // 10) % 3 != 0
    board = "_ P _ _\n_ O _ _\n_ _ _ O\nO _ _ G"
    turns = [
        {
            "prompt": f"Turn {t + 1}. State:\n{board}\nYou have {10 - 2 * t} actions left.",
            "reasoning": f"Player at (0, 1), goal at (3, 3), group {group}. I go down and then right.",
            "answer": "Down || Right",
            "response": "Player at ..</think><answer>Down || Right</answer>",
            "actions": ["Down", "Right"] if t or member else [],
            "reward": 0.0 if t == 0 else float(won),
            "penalty": 0.0 if t or member else -0.1,
            "valid": bool(t or member),
        }
        for t in range(2)
    ]
    return {
        "step": step,
        "split": split,
        "tag": TAG,
        "group": group,
        "member": member,
        "level": 1000 + group,
        "success": won,
        "reward": float(won) - 0.1,
        "kept": (group % 2 == 0) if split == "train" else None,
        "turns": turns,
    }


def build(folder, *, collapse=True, hostile=False, steps=60):
    """Writes a run directory with everything that a run leaves."""
    (folder / "rollouts").mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for line in metrics(steps, collapse):
            file.write(json.dumps(line) + "\n")
    with (folder / "groups.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            won = min(step, 8)
            row = {"mean": [1.0] * won + [0.3] * (9 - won), "std": [0.0] * won + [0.4] * (9 - won)}
            file.write(json.dumps({"step": step, "level": [0.0] * 9, "kept": [1.0] * 9, **row}) + "\n")
    for split in ("train", "eval"):
        for step in range(0, steps + 1, 10):
            rows = [episode(step, split, g, m) for g in range(4) for m in range(4)]
            if hostile:
                rows[0]["turns"][0]["reasoning"] = HOSTILE
                rows[0]["tag"] = HOSTILE
            text = "".join(json.dumps(r) + "\n" for r in rows)
            (folder / "rollouts" / f"{split}_{step:06d}.jsonl").write_text(text)
    levels = {
        "random": {"success": 0.21, "low": 0.18, "high": 0.25, "n": 512},
        "blind": {"success": 0.6, "low": 0.56, "high": 0.64, "n": 512},
        "teacher": {"success": 0.97, "low": 0.95, "high": 0.98, "n": 512},
    }
    (folder / "baselines.json").write_text(json.dumps(levels))
    (folder / "summary.json").write_text(
        json.dumps(
            {"steps": steps, "after": {"success": 0.74}, "stopped": "kept nothing", "note": "<b>done</b>"}
        )
    )
    (folder / "config.yaml").write_text(
        f"run: {{name: demo, seed: 3}}\nenv: {{tag: {TAG}}}\nmodel: {{path: null, hidden_size: 64}}\n"
        "algorithm: {adv_estimator: grpo}\nrollout: {env_groups: 8, group_size: 16}\n"
    )
    return folder


class Page(HTMLParser):
    """Elements, scripts and text as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.ids, self.text = [], [], [], []
        self.inside = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.inside = tag
        if tag == "script":
            self.scripts.append((attrs, []))

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1][1].append(data)
        elif self.inside != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    @property
    def rollouts(self):
        (data,) = ["".join(d) for a, d in self.scripts if a.get("id") == "rollout-data"]
        return json.loads(data)
