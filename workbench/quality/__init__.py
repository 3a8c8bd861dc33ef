"""What a bound costs in quality: texts, questions, repetition, and intervals over seeds."""
