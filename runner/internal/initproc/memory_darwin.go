package initproc

func forgetProgram() {}

func forgetPeak() {}
