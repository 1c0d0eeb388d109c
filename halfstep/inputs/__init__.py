"""What a result depends on outside of the pipeline: the users' images and code, by digests of their contents."""
