"""Should a trained model be believed? What it says of data, in numbers, words and pictures."""
