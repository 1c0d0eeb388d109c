"""Everything that talks to MLflow. The files of the pipeline are the truth; what is in MLflow is a view of them."""
