package initproc

func dropProgramPages() {}

func resetPeak() {}
