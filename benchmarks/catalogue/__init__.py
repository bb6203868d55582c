"""What the built-in catalogue is written from: tables of public facts and the price lists."""
