"""What ``cockpit doctor`` starts: is this environment fit, and how is a given model covered?"""
