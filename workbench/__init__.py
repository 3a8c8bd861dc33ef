"""Serve real-time interaction sessions on a bounded KV cache, and watch the cliff become a slope."""
