"""An OpenAI-compatible API: its forms, its streams and what is asked through it, whoever answers.

The endpoint that is bound to an episode (`environments.outside`) and the gateway speak it through these modules.
"""
