"""Methods by name: those of the papers, and any of the user's own (`package.module:METHOD`)."""

from collections.abc import Mapping
from types import MappingProxyType

from lexfed.core.errors import ConfigError, nearest
from lexfed.core.importing import is_own, own, written
from lexfed.federation.method import Entry

# Each is imported when it is asked for: compiled code and libraries take memory that other methods
# can do without.
METHODS: Mapping[str, str] = MappingProxyType({
    "fedevocab": "lexfed.methods.fedevocab:METHOD",
    "fedavg": "lexfed.methods.fedavg:METHOD",
    "fedavg_finetune": "lexfed.methods.fedavg:FINETUNE",
    "fedprox": "lexfed.methods.fedprox:METHOD",
    "lg_fedavg": "lexfed.methods.lg_fedavg:METHOD",
    "fedrecon": "lexfed.methods.fedrecon:METHOD",
    "local_only": "lexfed.methods.local_only:METHOD",
    "centralised": "lexfed.methods.centralised:METHOD",
    "federated_word2vec": "lexfed.methods.federated_word2vec:METHOD",
    "tokenizer_for_free": "lexfed.methods.tokenizer_for_free:METHOD",
})  # fmt: skip


def method(name: str) -> Entry:
    """The entry of a method. What can't be found is an error, never another method."""
    if name not in METHODS and not is_own(name):
        known = f"{nearest(name, METHODS)} (one of your own is 'package.module:METHOD')"
        raise ConfigError(f"method = '{name}' is not known; {written(name) or known}")
    found = own(METHODS.get(name, name), "method")
    if not isinstance(found, Entry):
        raise ConfigError(f"method = '{name}' is not a lexfed.Entry")
    if name in METHODS and not METHODS[name].startswith(f"{found.build.__module__}:"):
        raise ConfigError(
            f"method '{name}' was replaced in this process, and no worker and no resumed run would "
            'know: give yours a name of its own, method = "package.module:METHOD"'
        )
    return found
