"""Commands about one VLLMService: explain, history, export, backtest, and requests to the operator."""
