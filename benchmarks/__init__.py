"""How long one round takes, here and in the public peers (`make bench`).

`problem` states one round in NumPy and solves it slowly and plainly. `torch_round` and
`gpytorch_round` (with `pacoh_round`) solve it as well as PyTorch and GPyTorch can, `pacpfl_round`
as training here does. `harness` times them side by side, `measure` what needs a process of its
own, `floor` counts what a round must cost at least; `study` puts it together, `results` writes it.
"""
