"""Commands about one VLLMService: explain, history, export, backtest."""
