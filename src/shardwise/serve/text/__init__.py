"""Texts of a served model: tokens to text as they come, chat templates, tool calls, structures.

Tokens flow in from the engine one by one and text flows out that never has half a character. A
conversation flows in as messages and flows out as the prompt that the model was trained on.
"""
