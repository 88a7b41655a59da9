"""head.py: log π and entropy from hidden states, without a tensor of tokens times vocabulary.

The docstring of `loss.token_logprobs` has the plain lines, of which autograd keeps two (T, V).
Here they exist for `chunk_tokens` tokens at a time, and the backward pass computes them again, but
for those of the last chunk (bench/head.py: time and memory of all this and of its rivals).
Axes: T tokens, c tokens of one chunk, H hidden, V vocabulary."""
import torch

# Numbers of a block, which stays in a CPU's L2 cache between max, exp and the sums (2 MB of fp32: 6
# times as fast); on a GPU (64 MB) it need only be large enough to hide the launch of a kernel.
BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**24}


def logits_chunk(vocab_size):
    """Tokens whose fp32 logits exist at a time: 512 MiB of them. A matter of memory only."""
    return min(8192, max(16, 2**27 // vocab_size))


class TokenLogprobs(torch.autograd.Function):
    """z = h Wᵀ / temperature;  log π(y) = z_y - log Σ_v exp z_v
    dz = g · (onehot(y) - softmax z), g the gradient of log π(y)

    hidden (T, H), weight (V, H), targets (T,) -> log-probs (T,), entropies (T,) without a gradient.
    The operands are cast to `operand_dtype` in here: before, autograd would round the gradient of
    the weight to it. A token with an upstream gradient of zero costs nothing in the backward pass,
    and garbage in its hidden state reaches no gradient."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        T, dtype = len(targets), head.dtype
        logprobs, entropy, log_z = (hidden.new_empty(T, dtype=dtype) for _ in range(3))
        logits_buffer = hidden.new_empty(min(chunk_tokens, T), head.V, dtype=dtype)
        exp_buffer = torch.empty_like(logits_buffer[: head.block_rows])
        for start in range(0, T, chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            logits = head.logits(hidden[chunk], out=logits_buffer)  # (c, V)
            columns = (x[chunk, None] for x in (targets, logprobs, entropy, log_z))
            for z, y, logprob, ent, lz in head.blocks(logits, *columns):  # (rows, V), (rows, 1) ...
                peak = z.amax(1, keepdim=True)
                e = torch.sub(z, peak, out=exp_buffer[: len(z)]).exp_()  # cannot overflow
                Z = e.sum(1, keepdim=True)
                lz.copy_(Z.log() + peak)
                logprob.copy_(z.gather(1, y) - lz)
                ent.copy_(lz - torch.linalg.vecdot(e, z)[:, None] / Z)  # log Z - Σ p z, p = e / Z
        ctx.save_for_backward(hidden, weight, targets, log_z)
        ctx.logits_buffer = logits_buffer
        ctx.settings = temperature, chunk_tokens, operand_dtype, head_fp32, softcap
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_logprobs, _):
        """g (T,) -> the gradients of hidden (T, H) and weight (V, H), None for the other six."""
        hidden, weight, targets, log_z = ctx.saved_tensors
        temperature, chunk_tokens, operand_dtype, head_fp32, softcap = ctx.settings
        # backward() may be called inside an autocast region, which would round our products.
        with torch.autocast(hidden.device.type, enabled=False):
            # Made again: ctx would keep its rounded weight while all layers below go backward.
            head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
            grad_hidden = torch.zeros_like(hidden)
            # fp32 while chunks are added up: in bf16 the sum stops growing after some 256 chunks.
            grad_weight = torch.zeros_like(weight, dtype=head.dtype)
            # Clipped tokens, samples without advantage: no gradient, no matrix product.
            nonzero = grad_logprobs.nonzero().squeeze(1)
            # The forward pass left the last chunk's logits, good for one use: they are overwritten.
            logits_buffer, ctx.logits_buffer = ctx.logits_buffer, None
            still_there = logits_buffer is not None and len(nonzero) == len(targets)
            if logits_buffer is None:
                logits_buffer = log_z.new_empty(min(chunk_tokens, len(nonzero)), head.V)
            for start in reversed(range(0, len(nonzero), chunk_tokens)):
                chunk = nonzero[start: start + chunk_tokens]  # (c,)
                h, lz = hidden[chunk], log_z[chunk, None]  # (c, H), (c, 1)
                if still_there:
                    logits, still_there = logits_buffer[: len(chunk)], False
                else:
                    logits = head.logits(h, out=logits_buffer)  # (c, V)
                g = (grad_logprobs[chunk] / head.temperature)[:, None]  # (c, 1)
                # d/dx cap tanh(x / cap) = 1 - tanh², and z * temperature / cap is that tanh.
                slope = 1 - (logits * (head.temperature / softcap)).square_() if softcap else None
                for z, z_lz, z_g in head.blocks(logits, lz, g):
                    z.sub_(z_lz).exp_().mul_(-z_g)  # -g · softmax(z), in place
                logits.scatter_add_(1, targets[chunk, None], g)  # + g · onehot(y)
                logits = logits.mul_(slope) if softcap else logits
                grad_logits = logits.to(head.weight.dtype)  # bf16 where the head is, else no copy
                grad_hidden[chunk] = head.matmul(grad_logits, head.weight, out=torch.empty_like(h))
                head.add_matmul(grad_weight, grad_logits.t(), head.operand(h))
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None, None, None


class Head:
    """The three matrix products of the head. head_fp32: they are kept in fp32; else each is rounded
    to bf16, as by a bf16 linear layer (the paper's ablation)."""

    def __init__(self, weight, temperature, operand_dtype, head_fp32, softcap=None):
        self.V, self.softcap = len(weight), softcap
        self.temperature, self.operand_dtype, self.head_fp32 = temperature, operand_dtype, head_fp32
        self.dtype = torch.float64 if operand_dtype == torch.float64 else torch.float32
        # CUDA multiplies bf16 operands straight into fp32. Elsewhere torch cannot (2.13), so the
        # rounded operands are held in fp32: the same numbers, at the price of one fp32 head.
        self.widen = head_fp32 and not weight.is_cuda
        self.weight = self.operand(weight)
        self.mixed = head_fp32 and self.weight.dtype != self.dtype
        self.block_rows = max(1, BLOCK_ELEMENTS[weight.device.type] // self.V)

    def blocks(self, *tensors):
        return zip(*(x.split(self.block_rows) for x in tensors))

    def operand(self, x):
        x = x.to(self.operand_dtype)
        return x.to(self.dtype) if self.widen else x

    def logits(self, hidden, out):
        """(c, H) -> (c, V), in the first c rows of `out`."""
        logits = self.matmul(self.operand(hidden), self.weight.t(), out=out[: len(hidden)])
        if self.softcap:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits if self.temperature == 1 else logits.div_(self.temperature)

    def matmul(self, a, b, out):
        """out = a @ b. Only a bf16 head (head_fp32=False) rounds before it reaches an fp32 out."""
        if a.dtype == out.dtype:
            return torch.mm(a, b, out=out)
        if self.mixed:
            return torch.mm(a, b, out_dtype=self.dtype, out=out)
        return out.copy_(torch.mm(a, b))

    def add_matmul(self, total, a, b):
        """total += a @ b. Only a bf16 head, whose product is rounded, needs a (V, H) temporary."""
        if a.dtype == total.dtype:
            total.addmm_(a, b)
        elif self.mixed:
            torch.addmm(total, a, b, out_dtype=self.dtype, out=total)
        else:
            total += torch.mm(a, b)
