"""How figures are written for people: one place, so that terminal, report and README agree."""

from collections.abc import Mapping
from typing import Any

# key of summary.json -> what people call it
LABELS: Mapping[str, str] = {
    "method": "method",
    "rounds": "rounds",
    "clients": "clients",
    "global_accuracy": "global accuracy",
    "global_accuracy_interval": "global accuracy ± (95 %: texts and clients drawn)",
    "global_accuracy_spread": "global accuracy, spread over clients",
    "global_accuracy_mean": "global accuracy (arithmetic mean)",
    "local_accuracy": "local accuracy",
    "local_accuracy_interval": "local accuracy ± (95 %)",
    "local_accuracy_spread": "local accuracy, spread over clients",
    "local_majority_accuracy": "majority class alone",
    "macro_f1": "macro F1",
    "unseen_accuracy": "unseen clients' accuracy",
    "bytes_up": "sent up",
    "bytes_down": "sent down",
    "bytes_up_per_client_round": "up, per client and round",
    "parameters_shared": "parameters that travel",
    "parameters_private": "parameters that stay (per client)",
    "vocabulary_size": "words in the vocabulary",
    "single_source_words": "words of one organisation alone",
    "heldout_loss": "loss on held-out text",
    "centralised_heldout_loss": "loss, all text in one place",
    "alone_heldout_loss": "loss, the best organisation alone",
    "untrained_heldout_loss": "loss, untrained",
    "wordsim353": "WordSim353 (Spearman)",
    "wordsim353_found": "WordSim353, pairs known",
    "simlex999": "SimLex-999 (Spearman)",
    "simlex999_found": "SimLex-999, pairs known",
    "analogies": "analogies solved",
    "centralised_wordsim353": "WordSim353, all text in one place",
    "word_perplexity": "perplexity per word",
    "word_perplexity_interval": "perplexity per word ± (95 %: users drawn)",
    "worst_tenth_perplexity": "perplexity per word, worst tenth of users",
    "word_accuracy": "word accuracy",
    "tokens_per_word": "tokens per word",
    "oov_rate": "unknown words",
    "unigram_kld": "KL divergence",
    "tokenizer_switches": "tokenizer switches",
    "test_users": "test users",
    "epsilon_this_run": "epsilon of this run",
    "epsilon_deployment": "epsilon of the deployment",
    "delta": "delta",
    "privacy": "privacy",
    "held_back": "uploads held back",
    "seconds": "seconds",
    "stopped": "ended",
}


def human(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if key == "held_back":
        return f"{value['held']} of {value['uploads']}"
    if key.startswith("bytes"):
        return size(value)
    if key.endswith("heldout_loss") or "wordsim" in key or "simlex" in key:
        return f"{100 * value:.1f} %" if key.endswith("found") else f"{value:.3f}"
    if "accuracy" in key or key in ("macro_f1", "analogies", "oov_rate"):
        return f"{100 * value:.1f} %"
    if "perplexity" in key:
        return f"{value:,.1f}"
    if key in ("tokens_per_word", "unigram_kld"):
        return f"{value:.3f}"
    if key == "delta":
        return f"{value:g}"
    if key.startswith("parameters"):
        return f"{value:,.0f}"
    if key == "seconds":
        return f"{value:.1f}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
