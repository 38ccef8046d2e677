"""Asks an installed vLLM about itself and writes the answer as JSON: ``python describe.py OUT [MODEL]``.

Runs in the engine's own interpreter and imports vLLM, so it takes as long as an engine's imports do.  The answer:

``{"version", "package", "platform", "flags": [...], "context_defaults": {...}, "model": {...}, "problems": [...]}``

A part that this vLLM does not offer is left empty with an entry in ``problems``; only a vLLM that cannot be imported
at all ends the script with an error.
"""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write the description; exit 0 when vLLM could be imported."""
    out, model = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")
    sys.argv = ["vllm", "serve", "--help"]  # vLLM collects help texts only when it sees this
    answer: dict[str, Any] = {"problems": []}
    for key, make in (
        ("version", version),
        ("platform", platform),
        ("flags", flags),
        ("context_defaults", context_defaults),
        ("model", lambda: model_facts(model) if model else {}),
    ):
        try:
            answer[key] = make()
        except (Exception, SystemExit) as error:
            if key in ("version", "platform"):
                raise
            answer["problems"].append(f"{key}: {type(error).__name__}: {error}"[:2000])
    answer["package"] = package()
    partial = Path(f"{out}.{os.getpid()}")
    partial.write_text(json.dumps(answer), encoding="utf-8")
    partial.replace(out)


def version() -> str:
    """Return vLLM's version."""
    import vllm

    return str(vllm.__version__)


def package() -> str:
    """Return the name of the distribution that holds vLLM, empty when none is registered."""
    from importlib.metadata import packages_distributions

    names = packages_distributions().get("vllm", [])
    return names[0] if names else ""


def platform() -> str:
    """Return ``cpu``, ``cuda``, ``rocm``, ``xpu``, ``tpu`` or another device type that vLLM detected."""
    from vllm.platforms import current_platform

    if current_platform.is_rocm():
        return "rocm"
    kind = str(current_platform.device_type)
    if not kind:
        raise RuntimeError("vLLM finds no device that it can run on")
    return kind


def serve_parser() -> Any:
    """Return the parser of ``vllm serve``."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def flags() -> list[dict[str, Any]]:
    """Return one record per flag, as vLLM's own parser knows it."""
    hints = field_types()
    found = []
    for action in serve_parser()._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        positive = [name for name in names if not name.startswith("--no-") or f"--{name[5:]}" not in names]
        if not positive or action.dest == "help":
            continue
        main_name = "--" + action.dest.replace("_", "-")
        main_name = main_name if main_name in positive else positive[0]
        found.append(
            {
                "name": main_name[2:].replace("-", "_"),
                "aliases": [name[2:].replace("-", "_") for name in positive if name != main_name],
                "negatable": len(names) > len(positive),
                "kind": kind_of(action, hints.get(action.dest, "")),
                "choices": [str(choice) for choice in action.choices or () if choice is not None],
                "default": default_of(action),
                "help": " ".join(str(action.help or "").replace("%%", "%").split())[:400],
            }
        )
    return found


def field_types() -> dict[str, str]:
    """Return field name → annotation text of the classes behind the flags."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    found: dict[str, str] = {}
    for cls in AsyncEngineArgs.__mro__:
        for name, hint in getattr(cls, "__annotations__", {}).items():
            found.setdefault(name, hint if isinstance(hint, str) else getattr(hint, "__name__", "") + " " + str(hint))
    return found


def kind_of(action: Any, hint: str) -> str:
    """Return ``bool``, ``int``, ``float``, ``json`` or ``str`` for a flag."""
    if action.nargs == 0 or type(action).__name__ == "BooleanOptionalAction":
        return "bool"
    type_name = getattr(action.type, "__name__", "")
    if action.nargs in ("+", "*"):
        return "str"
    if action.type is int or "human_readable_int" in type_name:
        return "int"
    if action.type is float:
        return "float"
    words = set(hint.replace("|", " ").replace("[", " ").replace("]", " ").replace(",", " ").split())
    if "parse_dataclass" in type_name or "union_dict" in type_name or words & {"dict", "Dict"} or "Config" in hint:
        return "json"
    if "json" in type_name or "loads" in type_name:
        return "json"
    if "int" in words and not words & {"str", "list"}:
        return "int"
    if "float" in words and not words & {"str", "list"}:
        return "float"
    return "str"


def default_of(action: Any) -> Any:
    """Return the default where it is a scalar that means something to the user, else ``None``."""
    value = getattr(action.default, "value", action.default)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if isinstance(value, bool | int | float | str) and value != "==SUPPRESS==" else None


def context_defaults() -> dict[str, Any]:
    """Return the defaults of the API server that depend on platform and memory."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    tokens, sequences = EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    found = {"max_num_batched_tokens": tokens.get(server), "max_num_seqs": sequences.get(server)}
    if platform() == "cpu":
        found["block_size"] = 128
        found["async_scheduling"] = False
    else:
        found["async_scheduling"] = True
    found["enable_chunked_prefill"] = True
    found["enable_prefix_caching"] = True
    return {name: value for name, value in found.items() if value is not None}


def model_facts(model: str) -> dict[str, Any]:
    """Return facts of the model's own configuration as flat scalars."""
    config, text = model_config(model)
    get = text.get
    architecture = (config.get("architectures") or text.get("architectures") or [""])[0]
    heads = get("num_attention_heads") or get("n_head") or 0
    experts = get("num_experts") or get("num_local_experts") or get("n_routed_experts") or 0
    hidden = get("hidden_size") or get("n_embd") or 0
    quantization = config.get("quantization_config") or get("quantization_config") or {}
    facts = {
        "architecture": architecture,
        "model_type": config.get("model_type"),
        "dtype": str(get("dtype") or get("torch_dtype") or config.get("torch_dtype") or "").replace("torch.", ""),
        "max_position_embeddings": get("max_position_embeddings") or get("n_positions") or get("seq_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("num_key_value_heads") or heads,
        "head_dim": get("head_dim") or (hidden // heads if heads else None),
        "num_hidden_layers": get("num_hidden_layers") or get("n_layer"),
        "hidden_size": hidden,
        "intermediate_size": get("intermediate_size"),
        "vocab_size": get("vocab_size"),
        "num_experts": experts,
        "is_moe": bool(experts and experts > 1),
        "has_mtp": bool(get("num_nextn_predict_layers") or get("mtp_num_hidden_layers")),
        "uses_mla": bool(get("kv_lora_rank")),
        "kv_lora_rank": get("kv_lora_rank"),
        "qk_rope_head_dim": get("qk_rope_head_dim"),
        "sliding_window": get("sliding_window"),
        "quantization": quantization.get("quant_method") if isinstance(quantization, dict) else None,
        "weight_bytes": weight_bytes(model),
    }
    return {name: value for name, value in facts.items() if isinstance(value, bool | int | float | str) and value != ""}


def model_config(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and its language part as dictionaries; hub names go through vLLM's own loader."""
    path = Path(model) / "config.json"
    config: dict[str, Any]
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8"))
    else:
        from vllm.transformers_utils.config import get_config

        config = get_config(model, trust_remote_code=False).to_dict()
    text = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), config)
    return config, text


def weight_bytes(model: str) -> int | None:
    """Return the size of the weight files in bytes, ``None`` when they are not on this machine."""
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download  # type: ignore[import-not-found]

        try:
            folder = Path(snapshot_download(model, local_files_only=True))
        except Exception:
            return None
    for ending in (".safetensors", ".bin", ".pt", ".gguf"):
        sizes = [file.stat().st_size for file in folder.glob(f"*{ending}")]
        if sizes:
            return sum(sizes)
    return None


if __name__ == "__main__":
    main()
