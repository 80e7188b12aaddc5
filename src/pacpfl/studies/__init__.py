"""The paper's tables and figures, and the runs they are made of."""
