"""A parser of the operator's own, whose markup is one of the stub tokenizer's special tokens."""

from octavo.api.tools.json_calls import HermesParser


class Special(HermesParser):
    """Calls behind ``<|im_start|>``."""

    openings = ("<|im_start|>",)
    closings = ()
    markers = ("<|im_start|>",)
