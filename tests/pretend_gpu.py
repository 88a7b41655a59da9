"""A GPU that is none: tensors that say device = "cuda" and are computed on the CPU.

    with PretendGpu(monkeypatch) as gpu: ...        everything in it takes the path of a GPU

`FakeTensorMode` knows such tensors too, but no values, which a sampler needs, and no backward pass
in a torch without CUDA. So each tensor that is made on purpose on one side is marked, by its class,
as OnGpu or OnCpu; what autograd makes in between has no mark and may be anywhere. A call that mixes
marks is refused as CUDA would refuse it. Kernels that only CUDA has are written out in plain lines.

gpu.calls counts what was called with a tensor on the GPU (a kernel each, or none, or a few);
gpu.syncs counts what the CPU waited for: numbers that it read.
"""

from collections import Counter
from types import SimpleNamespace

import torch
import torch.nn.attention.varlen
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only

from engines import load

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
READS = {"tolist", "item", "__int__", "__bool__", "__float__", "__index__", "nonzero", "cpu",
         "numpy", "argwhere", "masked_select", "unique", "equal", "allclose"}


class OnGpu(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __deepcopy__(self, memo):
        twin = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            twin._is_param = True
        return memo.setdefault(id(self), twin)


class OnCpu(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def is_cuda(device):
    return device is not None and torch.device(device).type == "cuda"


def device_of(func, args, kwargs):
    """(the device that this call asks for, or None; its arguments with the CPU instead)."""
    if kwargs.get("device") is not None:
        return kwargs["device"], args, (
            kwargs | {"device": CPU} if is_cuda(kwargs["device"]) else kwargs)
    if func is torch.Tensor.to and len(args) > 1:
        if isinstance(args[1], (str, torch.device)):
            return args[1], (args[0], CPU, *args[2:]), kwargs
        if isinstance(args[1], torch.Tensor):
            return (CUDA if isinstance(args[1], OnGpu) else CPU), args, kwargs
    if func in (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist):
        return CPU, args, kwargs
    return None, args, kwargs


def mixed(func, args, tensors):
    """Would CUDA refuse this call for the devices of its arguments?"""
    marks = {type(x) for x in tensors if x.ndim and isinstance(x, (OnGpu, OnCpu))}
    name = func.__name__
    if len(marks) < 2 or name in ("copy_", "to", "__set__"):
        return False
    if name == "__getitem__":                   # indices on the CPU are sent along
        return isinstance(args[0], OnCpu)
    if name == "__setitem__":
        basic = not any(isinstance(i, (torch.Tensor, list)) for i in tree_flatten(args[1])[0])
        return not basic and (isinstance(args[0], OnCpu) or isinstance(args[2], OnCpu))
    return True


class PretendGpu(TorchFunctionMode):
    def __init__(self, monkeypatch, capability=(9, 0)):
        super().__init__()
        self.calls, self.syncs, self.devices = Counter(), Counter(), Counter()
        generator, autocast = torch.Generator, torch.autocast
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

        class Generator(generator):
            def __new__(cls, device="cpu"):
                made = super().__new__(cls)
                made.place = CUDA if is_cuda(device) else CPU
                return made
            device = property(lambda self: self.place)
        properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=79 * 2**30)
        read_model = load.read_model

        def read_unmarked(*args, **kwargs):     # as a whole: transformers fills meta tensors
            with torch.overrides._pop_mode_temporarily():
                return read_model(*args, **kwargs)
        for where, name, value in (
                (load, "read_model", read_unmarked),
                (torch, "Generator", Generator),
                (torch, "autocast", lambda _, *a, **k: autocast("cpu", *a, **k)),
                (torch, "is_autocast_enabled", lambda _=None: enabled("cpu")),
                (torch, "get_autocast_dtype", lambda _: dtype("cpu")),
                (torch, "mm", self.product(torch.mm)), (torch, "addmm", self.product(torch.addmm)),
                (torch.nn.attention.varlen, "varlen_attn", plain_varlen),
                # torch's CUDA build would look for a driver.
                (torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda _: None),
                (torch.cuda, "is_available", lambda: True),
                (torch.cuda, "device_count", lambda: 1),
                (torch.cuda, "get_device_name", lambda *_: properties.name),
                (torch.cuda, "get_device_capability", lambda *_: capability),
                (torch.cuda, "get_device_properties", lambda *_: properties),
                (torch.cuda, "mem_get_info", lambda *_: 2 * (properties.total_memory,))):
            monkeypatch.setattr(where, name, value)

    def product(self, plain):
        """torch.mm or addmm with CUDA's out_dtype: bf16 operands, summed in fp32."""
        def call(*tensors, out_dtype=None, out=None):
            if out_dtype is None:
                return plain(*tensors, out=out) if out is not None else plain(*tensors)
            *added, a, b = tensors
            assert a.dtype == b.dtype == torch.bfloat16 and out_dtype == torch.float32
            return plain(*added, a.float(), b.float(), out=out)
        return call

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        on_gpu = any(isinstance(x, OnGpu) for x in tensors)
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return CUDA if on_gpu else CPU
        if getattr(func, "__self__", None) is torch.Tensor.is_cuda:
            return on_gpu
        if mixed(func, args, tensors):
            raise RuntimeError(f"{func.__name__}: tensors on the GPU and on the CPU: " + ", ".join(
                f"{type(x).__name__} {tuple(x.shape)}" for x in tensors))
        asked, args, kwargs = device_of(func, args, kwargs)
        if on_gpu:
            kind = self.syncs if func.__name__ in READS else self.calls
            kind[func.__name__] += func.__name__ != "__get__"
        found = func(*args, **kwargs)
        if func.__name__ == "__set__":          # x.data = y
            if isinstance(args[0], torch.Tensor) and isinstance(args[1], OnGpu):
                mark(args[0], OnGpu)
            return found
        if asked is not None:
            kind = OnGpu if is_cuda(asked) else OnCpu
        elif tensors:                           # as its arguments, if they are marked
            kind = OnGpu if on_gpu else next(
                (OnCpu for x in tensors if isinstance(x, OnCpu)), None)
        else:
            kind = OnCpu
        given = {id(x) for x in tensors}

        def marked(x):
            if id(x) in given:
                if kind is None or type(x) is kind or asked is None:
                    return x
                x = x.clone()                   # `to` of another device is a copy
            return mark(x, kind)
        return found if kind is None else tree_map_only(torch.Tensor, marked, found)


def mark(x, kind):
    """The tensor itself, whose class says now where it is."""
    parameter = isinstance(x, torch.nn.Parameter)
    x.__class__ = kind
    if parameter:
        x._is_param = True
    return x


def plain_varlen(q, k, v, ends_q, ends_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """What torch.nn.attention.varlen documents, a sequence at a time: causal from the end."""
    assert window_size == (-1, 0) and enable_gqa == (q.shape[1] != k.shape[1])
    assert q.dtype == k.dtype == v.dtype and q.dtype.itemsize == 2 and ends_q.dtype == torch.int32
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    out = []
    for q0, q1, k0, k1 in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
        scores = torch.einsum("qhd,khd->hqk", q[q0:q1].float(), k[k0:k1].float()) * scale
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool, device=q.device).tril(
            int(k1 - k0 - (q1 - q0)))
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1),
                                v[k0:k1].float()).to(q.dtype))
    return torch.cat(out)
