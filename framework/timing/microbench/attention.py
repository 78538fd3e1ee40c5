"""Attention kernels of the libraries on a machine, called on one layer's paged KV cache.

All are causal with the mask aligned to the last token, so a chunk of new tokens sees all of its prefix. Keys and values
lie in pages scattered over the cache, as a server leaves them.

Sources of the calls: docs.flashinfer.ai (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper);
github.com/Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py (version 2) and hopper/flash_attn_interface.py
(version 3); docs.pytorch.org, torch.nn.attention.varlen (paged since 2.12) and torch.nn.attention.bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from framework.timing.microbench.cases import MIXED, Case, contexts_of
from framework.timing.microbench.device import UnsupportedError

_PAGE_TOKENS = 16
_WIDE_PAGE_TOKENS = 256  # what version 2 of the flash attention kernels requires
_WORKSPACE_BYTES = 256 * 2**20
_GROUP_FOR_TENSOR_CORES = 4  # query heads per KV head from which decoding on tensor cores pays


@dataclass(frozen=True)
class Calls:
    """A kernel and its arguments: one set for each copy of the data that a step reads from memory."""

    kernel: str
    function: Callable[..., object]
    inputs: Sequence[tuple[Any, ...]]

    def __call__(self, turn: int) -> object:
        """Call the kernel with the set of arguments for this turn."""
        return self.function(*self.inputs[turn % len(self.inputs)])


@dataclass(frozen=True)
class Sequences:
    """What a call attends over: the new tokens of each sequence, and its context, which includes the new tokens."""

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]

    @classmethod
    def of(cls, case: Case) -> Sequences:
        """The sequences of an attention case: chunks first, then decodes."""
        batch, chunk, context = case.size("batch"), case.size("tokens"), case.size("context")
        if case.operation == "decode_attention":
            return cls((1,) * batch, contexts_of(batch, context, case.size("longest") or context))
        decodes = case.size("decodes") if case.operation == MIXED else 0
        whole = chunk + case.size("prefix")
        return cls((chunk,) * batch + (1,) * decodes, (whole,) * batch + (context,) * decodes)

    @property
    def are_decodes(self) -> bool:
        """Whether no sequence has more than one new token."""
        return max(self.tokens) == 1

    @property
    def are_alike(self) -> bool:
        """Whether all sequences have equally many new tokens and the same context."""
        return len(set(self.tokens)) == len(set(self.contexts)) == 1


class PagedCache:
    """Queries, and `copies` copies of the KV of one layer in scattered pages of `page` tokens, all normal noise.

    Noise instead of zeros: a GPU that multiplies zeros draws less power and clocks higher than one that serves.
    """

    def __init__(self, torch: Any, case: Case, copies: int, page: int, device: str) -> None:
        self.sequences = Sequences.of(case)
        self.heads, self.kv_heads = case.size("heads"), case.size("kv_heads")
        self.head_dim, self.page, self.window = case.size("head_dim"), page, case.size("window")
        self.dtype = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[case.dtype("kv_dtype")]
        self.pages = tuple(-(-context // page) for context in self.sequences.contexts)
        shape = (2, sum(self.pages), page, self.kv_heads, self.head_dim)
        noise = {"dtype": torch.bfloat16, "device": device}
        self.copies = [tuple(torch.randn(shape, **noise).to(self.dtype)) for _ in range(copies)]
        self.queries = torch.randn((sum(self.sequences.tokens), self.heads, self.head_dim), **noise)
        self.order = torch.randperm(sum(self.pages), device=device).int()
        self._torch, self._device = torch, device

    def starts(self, sizes: Sequence[int]) -> Any:
        """Where each sequence begins when `sizes` lie one after another, and the end; int32, shape (sequences + 1,)."""
        sums = [0]
        for size in sizes:
            sums.append(sums[-1] + size)
        return self.integers(sums)

    def integers(self, values: Sequence[int]) -> Any:
        """The values on the device, int32 of shape (values,)."""
        return self._torch.tensor(values, dtype=self._torch.int32, device=self._device)

    def lengths(self) -> tuple[Any, Any, int, int]:
        """The starts of the queries and of the keys of each sequence, the most new tokens, and the longest context."""
        tokens, contexts = self.sequences.tokens, self.sequences.contexts
        return self.starts(tokens), self.starts(contexts), max(tokens), max(contexts)

    def page_table(self) -> Any:
        """The pages of each sequence, int32 of shape (sequences, most pages), and 0 beyond its last page."""
        table = self._torch.zeros((len(self.pages), max(self.pages)), dtype=self._torch.int32, device=self._device)
        for row, pages in zip(table, self.order.split(self.pages), strict=True):
            row[: len(pages)] = pages
        return table

    @property
    def reach(self) -> tuple[int, int]:
        """The tokens before and after itself that a token sees; -1: all."""
        return (self.window - 1 if self.window else -1, 0)


def attention_calls(torch: Any, library: str, case: Case, copies: int, device: str = "cuda") -> Calls:
    """The calls of an attention case, over `copies` copies of the KV. Raises UnsupportedError if there are none."""
    if library != "flashinfer" and case.dtype("kv_dtype") != "bf16":
        raise UnsupportedError(f"{library} is not called with {case.dtype('kv_dtype')} KV")
    if library == "torch":
        paged = _paged_attention_of_torch()
        if paged is None:
            return Calls("torch_sdpa", *plain_torch(torch, case, copies, device))
        cache = PagedCache(torch, case, copies, _WIDE_PAGE_TOKENS, device)
        return Calls("torch_varlen", paged_torch(paged, cache), cache.copies)
    module = import_module(library)
    page = {"flash_attn": _WIDE_PAGE_TOKENS, "fa3_fwd_interface": 1}.get(library, _PAGE_TOKENS)
    cache = PagedCache(torch, case, copies, page, device)
    if library == "flashinfer":
        return Calls(library, flash_infer(torch, module, cache), cache.copies)
    calls = {"flash_attn": flash_2, "flash_attn_interface": flash_3, "fa3_fwd_interface": flash_3_in_one_piece}
    return Calls(library, calls[library](module, cache), cache.copies)


def flash_infer(torch: Any, flashinfer: Any, cache: PagedCache) -> Callable[..., object]:
    """FlashInfer as a function of keys and values. It has one kernel for decodes, and one for any step with a chunk."""
    sequences = cache.sequences
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=cache.queries.device)
    last = [(context - 1) % cache.page + 1 for context in sequences.contexts]
    pages = (cache.starts(cache.pages), cache.order, cache.integers(last))
    sizes = (cache.heads, cache.kv_heads, cache.head_dim, cache.page)
    types = {"q_data_type": torch.bfloat16, "kv_data_type": cache.dtype, "window_left": cache.reach[0]}
    if sequences.are_decodes:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=cache.heads // cache.kv_heads >= _GROUP_FOR_TENSOR_CORES,
            paged_kv_indptr_buffer=pages[0].clone(),
            paged_kv_indices_buffer=pages[1].clone(),
            paged_kv_last_page_len_buffer=pages[2].clone(),
        )
        wrapper.plan(*pages, *sizes, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(cache.starts(sequences.tokens), *pages, *sizes, causal=True, **types)
    return lambda k, v: wrapper.run(cache.queries, (k, v))


def flash_2(flash: Any, cache: PagedCache) -> Callable[..., object]:
    """FlashAttention 2 as a function of keys and values: one kernel splits the KV of decodes, one takes any lengths."""
    sequences = cache.sequences
    options = {"causal": True, "window_size": cache.reach, "block_table": cache.page_table()}
    if sequences.are_decodes:
        queries, contexts = cache.queries.unsqueeze(1), cache.integers(sequences.contexts)
        return lambda k, v: flash.flash_attn_with_kvcache(queries, k, v, cache_seqlens=contexts, **options)
    lengths = cache.lengths()
    return lambda k, v: flash.flash_attn_varlen_func(cache.queries, k, v, *lengths, **options)


def flash_3(flash: Any, cache: PagedCache) -> Callable[..., object]:
    """FlashAttention 3 as a function of keys and values: one kernel takes everything."""
    sequences = cache.sequences
    options = {
        "cache_seqlens": cache.integers(sequences.contexts),
        "page_table": cache.page_table(),
        "cu_seqlens_q": cache.starts(sequences.tokens),
        "max_seqlen_q": max(sequences.tokens),
        "causal": True,
        "window_size": cache.reach,
    }
    return lambda k, v: flash.flash_attn_with_kvcache(cache.queries, k, v, **options)


def flash_3_in_one_piece(flash: Any, cache: PagedCache) -> Callable[..., object]:
    """FlashAttention 3 without pages; it takes pages of one token in order, and splits keys as it sees fit.

    Raises UnsupportedError for a window, which this build leaves out.
    """
    if cache.window:
        raise UnsupportedError("a window needs flashinfer, flash_attn_interface or flash_attn")
    lengths, options = cache.lengths(), {"causal": True, "num_splits": 0}
    return lambda k, v: flash.flash_attn_varlen_func(cache.queries, k.squeeze(1), v.squeeze(1), *lengths, **options)


def paged_torch(attention: Callable[..., object], cache: PagedCache) -> Callable[..., object]:
    """PyTorch's varlen_attn_out on a paged cache, as a function of keys and values: one kernel takes everything.

    (varlen_attn itself adds a second, small kernel.)
    """
    lengths = cache.lengths()
    options = {
        "window_size": cache.reach,
        "enable_gqa": cache.heads != cache.kv_heads,
        "seqused_k": cache.integers(cache.sequences.contexts),
        "block_table": cache.page_table(),
    }
    out = cache.queries.clone()
    return lambda k, v: attention(out, cache.queries, k, v, *lengths, **options)


def plain_torch(
    torch: Any, case: Case, copies: int, device: str
) -> tuple[Callable[..., object], list[tuple[Any, ...]]]:
    """PyTorch's flash attention on KV in one piece: the function, and its arguments for each copy.

    Chunks and decodes in one call use the kernel for any lengths. Raises UnsupportedError for decodes that differ, and
    for a window.
    """
    sequences = Sequences.of(case)
    if case.operation == MIXED and not case.size("window"):
        cache = PagedCache(torch, case, copies, 1, device)
        lengths = (*cache.lengths(), 0.0, True, False)  # no dropout, causal, no debugging
        flash = torch.ops.aten._flash_attention_forward
        return lambda k, v: flash(cache.queries, k.squeeze(1), v.squeeze(1), *lengths), cache.copies
    if not sequences.are_alike:
        raise UnsupportedError("sequences of unlike lengths need flashinfer, flash_attn or torch 2.12")
    if case.size("window"):
        raise UnsupportedError("a window needs flashinfer, flash_attn or torch 2.12")
    batch, tokens, context = len(sequences.tokens), sequences.tokens[0], sequences.contexts[0]
    noise = {"dtype": torch.bfloat16, "device": device}
    queries = torch.randn((batch, case.size("heads"), tokens, case.size("head_dim")), **noise)
    shape = (2, batch, case.size("kv_heads"), context, case.size("head_dim"))
    attention = torch.nn.attention
    # `is_causal` would align the mask to the first token, which differs if there is a prefix; a decode needs none.
    mask = import_module("torch.nn.attention.bias").causal_lower_right(tokens, context) if tokens > 1 else None
    grouped = {"enable_gqa": True} if case.size("heads") != case.size("kv_heads") else {}

    def attend(k: Any, v: Any) -> object:
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(queries, k, v, attn_mask=mask, **grouped)

    return attend, [tuple(torch.randn(shape, **noise)) for _ in range(copies)]


def _paged_attention_of_torch() -> Callable[..., object] | None:
    """varlen_attn_out if it knows page tables; None before PyTorch 2.12."""
    try:
        attention: Callable[..., object] = import_module("torch.nn.attention.varlen").varlen_attn_out
    except (ImportError, AttributeError):
        return None
    return attention if "block_table" in inspect.signature(attention).parameters else None
