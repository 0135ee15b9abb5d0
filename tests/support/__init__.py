"""What several test modules compute with: references, batches, byte counters."""
