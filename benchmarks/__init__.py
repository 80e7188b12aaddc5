"""How long one round takes, here and in the public peers (`make bench`).

`problem` states one round in NumPy and solves it slowly and plainly; `torch_round` and
`gpytorch_round` solve it as well as PyTorch and GPyTorch can; `harness` times any number of
implementations side by side.
"""
