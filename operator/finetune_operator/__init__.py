"""Fine-tune language models on TPUs with Kubernetes."""
