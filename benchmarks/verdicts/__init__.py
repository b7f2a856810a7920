"""Error rates of the verdict on a change: simulated arms, noise fitted from them, the operating curve."""
