"""The vLLM plugin of the workbench: bounded sessions on the stock engine. It adds; it patches no kernel."""
